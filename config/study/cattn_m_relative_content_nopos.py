# Overlay: CAttnM with four heads and columns by distance and by content, without positional encoding.
#   python train.py config/study/dense.py config/study/cattn_m_relative_content_nopos.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
cattn_content = True
position = "none"
