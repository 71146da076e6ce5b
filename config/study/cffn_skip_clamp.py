# cffn_skip with the papers' clamp.
#   python train.py config/study/dense.py config/study/cffn_skip_clamp.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "self_skip"
cf_pole = "clamp"
