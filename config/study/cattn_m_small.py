# Overlay: CAttnM by distance and content, with so few ladders that the model has four fifths of the dense
# parameters.
#   python train.py config/study/dense.py config/study/cattn_m_small.py --out_dir=out/arm
attention = "cattn_relative"
cattn_heads = 4
cf_ladders = 3
cf_depth = 2
cattn_content = True
position = "none"
