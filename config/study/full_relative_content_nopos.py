# Overlay:
# CAttnM by distance and content without an output projection, and cffn_added. No positional encoding.
#   python train.py config/study/dense.py config/study/full_relative_content_nopos.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
cattn_content = True
position = "none"
ffn = "cffn_added"
