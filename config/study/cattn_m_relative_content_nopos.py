# CAttnM with four heads, columns by distance and by content, no embedding of positions.
#   python train.py config/study/dense.py config/study/cattn_m_relative_content_nopos.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
cattn_content = True
position = "none"
