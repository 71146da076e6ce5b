# CAttnM by distance and by content without a projection, cffn_added; no embedding of positions.
#   python train.py config/study/dense.py config/study/full_relative_content_nopos.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
cattn_content = True
position = "none"
ffn = "cffn_added"
