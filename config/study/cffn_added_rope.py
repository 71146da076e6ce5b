# Softmax attention with RoPE, and cffn_added.
#   python train.py config/study/base.py config/study/cffn_added_rope.py --out_dir=out/arm
position = "rope"
ffn = "cffn_added"
