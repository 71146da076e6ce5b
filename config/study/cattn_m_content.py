# CAttnM with four heads whose columns hold their tokens' content, too.
#   python train.py config/study/dense.py config/study/cattn_m_content.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_content = True
