# Overlay:
# CAttnM by distance and content with an output projection. All heads share the values, as in multi-query
# attention, so that the model has four fifths of the dense parameters.
#   python train.py config/study/dense.py config/study/cattn_m_shared.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = None  # as many as n_head
cattn_value_heads = 1
cattn_proj = True
cf_ladders = 2
cf_depth = 1
cattn_content = True
position = "none"
