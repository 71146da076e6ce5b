# Overlay:
# config/study/cffn_glu.py with RoPE, and so wide that the model has two thirds of the dense parameters.
#   python train.py config/study/dense.py config/study/cffn_glu_rope.py --out_dir=out/arm
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
ffn_hidden = 160
position = "rope"
