# The gated Cffn of cffn_glu with constants for its fractions.
#   python train.py config/study/base.py config/study/cffn_glu_constant.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
cf_control = True
cf_control_constant = True
