# A gated Cffn whose linear part sees x and not the gated h: y = U x + V z(h). Not what the paper prints.
#   python train.py config/study/dense.py config/study/cffn_skip.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "self_skip"
