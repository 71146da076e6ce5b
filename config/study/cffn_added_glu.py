# Overlay:
# The control of config/study/cffn_added_many.py: a GLU instead of its ladders, with as many parameters.
#   python train.py config/study/dense.py config/study/cffn_added_glu.py --out_dir=out/arm
ffn = "cffn_added"
cf_control = "zero"
ffn_hidden = 84
