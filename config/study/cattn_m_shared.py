# CAttnM by distance with content and a projection, small enough for four fifths of the dense parameters:
# all heads share the values, as in multi-query attention.
#   python train.py config/study/dense.py config/study/cattn_m_shared.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = None  # n_head
cattn_value_heads = 1
cattn_proj = True
cf_ladders = 2
cf_depth = 1
cattn_content = True
position = "none"
