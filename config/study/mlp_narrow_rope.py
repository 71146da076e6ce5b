# An MLP with as many parameters as cffn_added has, and RoPE.
#   python train.py config/study/base.py config/study/mlp_narrow_rope.py --out_dir=out/arm
position = "rope"
ffn_hidden = 142
