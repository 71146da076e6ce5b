# The arXiv paper's Cffn with its pole as printed.
#   python train.py config/study/dense.py config/study/cffn_gated_clamp.py --out_dir=out/arm
ffn = "cffn_gated"
cf_pole = "clamp"
