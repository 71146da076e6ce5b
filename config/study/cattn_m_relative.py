# Overlay: CAttnM with four heads and columns by distance.
#   python train.py config/study/dense.py config/study/cattn_m_relative.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
