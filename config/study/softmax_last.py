# Overlay: Softmax attention in the last of six layers, on top of attention by distance and content.
# Goes on top of config/study/full_content.py, as config/study/softmax_third.py does, for six layers.
#   python train.py config/study/dense.py config/study/full_content.py config/study/softmax_last.py --n_layer=6
attention = "cattn_relative,cattn_relative,cattn_relative,cattn_relative,cattn_relative,softmax"
