# Overlay:
# Both layers replaced: CAttnM by distance and content with an output projection, and cffn_added. No
# positional encoding.
#   python train.py config/study/dense.py config/study/full_content.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_content = True
cattn_proj = True
position = "none"
ffn = "cffn_added"
