# Overlay: Softmax attention in the first of six layers, on top of attention by distance and content.
# Goes on top of config/study/full_content.py, as config/study/softmax_third.py does.
#   python train.py config/study/dense.py config/study/full_content.py config/study/softmax_first.py \
#     --out_dir=out/softmax_first
attention = "softmax,cattn_relative,cattn_relative,cattn_relative,cattn_relative,cattn_relative"
n_layer = 6
