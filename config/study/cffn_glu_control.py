# cffn_glu without its fractions.
#   python train.py config/study/base.py config/study/cffn_glu_control.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
cf_control = True
