# Overlay: CAttnM with four heads and columns by distance, without positional encoding.
#   python train.py config/study/dense.py config/study/cattn_m_relative_nopos.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
position = "none"
