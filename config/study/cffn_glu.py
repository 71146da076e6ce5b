# The arXiv paper's Cffn with a gated linear unit in front.
#   python train.py config/study/dense.py config/study/cffn_glu.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
