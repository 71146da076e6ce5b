# Both replaced: CAttnM by distance with content and a projection, cffn_added; no embedding of positions.
#   python train.py config/study/dense.py config/study/full_content.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = None  # n_head
cattn_content = True
cattn_proj = True
position = "none"
ffn = "cffn_added"
