# Overlay: The ICLR paper's Cffn: the product of two ensembles of ladders.
#   python train.py config/study/dense.py config/study/cffn_product.py --out_dir=out/arm
ffn = "cffn_product"
