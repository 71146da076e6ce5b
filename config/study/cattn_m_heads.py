# Overlay: CAttnM with four heads.
#   python train.py config/study/dense.py config/study/cattn_m_heads.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
