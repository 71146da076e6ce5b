# cffn_glu_rope without its fractions.
#   python train.py config/study/base.py config/study/cffn_glu_control_rope.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
ffn_hidden = 160
cf_control = True
position = "rope"
