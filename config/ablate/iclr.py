# Overlay for CoFrGeNet-F and the full CoFrGeNet: the ICLR version's Cffn (its section 4.1.2), the product
# of two ensembles of depths d and d + 1. That version's Table 1 counts 2 L p (d + 1) parameters and leaves
# out the collapsed p x p maps. This model has 2 p^2 + L p more per layer, and the intercepts.
#   python train.py config/cofrgenet_f.py config/ablate/iclr.py --out_dir=out/iclr_f
ffn = "cffn_product"
