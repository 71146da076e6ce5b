# Overlay: The attention of config/study/full_content.py alone: by distance and content, with an output
# projection, as many heads as softmax attention. The MLP stays. No positional encoding.
#   python train.py config/study/dense.py config/study/content.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_content = True
cattn_proj = True
position = "none"
