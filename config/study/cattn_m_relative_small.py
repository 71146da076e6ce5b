# Overlay: config/study/cattn_m_relative.py with fewer ladders: 0.8 of the dense model's parameters.
#   python train.py config/study/dense.py config/study/cattn_m_relative_small.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
cf_ladders = 3
