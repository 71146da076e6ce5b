# Overlay: Softmax attention in every second layer, on top of attention by distance and content.
# Goes on top of config/study/full_content.py, as config/study/softmax_third.py does.
#   python train.py config/study/dense.py config/study/full_content.py config/study/softmax_second.py \
#     --out_dir=out/softmax_second
attention = "cattn_relative,softmax"
