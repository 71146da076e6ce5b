# Overlay: The arXiv paper's Cffn, as we read it: y = U h + V z(h), h = sigmoid(G x) * x.
#   python train.py config/study/dense.py config/study/cffn_gated.py --out_dir=out/arm
ffn = "cffn_gated"
