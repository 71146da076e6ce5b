# The arXiv paper's Cffn, ladders on a gated input.
#   python train.py config/study/dense.py config/study/cffn_gated.py --out_dir=out/arm
ffn = "cffn_gated"
