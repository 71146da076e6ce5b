# Overlay: Ladders on a gated linear unit: y = U h + V z(h), h = silu(G x) * (P x).
#   python train.py config/study/dense.py config/study/cffn_glu.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
