# cattn_m_relative with fewer ladders: 0.8 of the dense model's parameters.
#   python train.py config/study/dense.py config/study/cattn_m_relative_small.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
cf_ladders = 3
