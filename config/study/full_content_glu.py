# Overlay: config/study/full_content.py with a GLU plus ladders as its feed-forward layers.
#   python train.py config/study/dense.py config/study/full_content_glu.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_content = True
cattn_proj = True
position = "none"
ffn = "cffn_gated"
cffn_gate = "glu_collapsed"
ffn_hidden = 120
