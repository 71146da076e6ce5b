# Overlay: Softmax attention in every third layer, on top of attention by distance and content.
# There is no positional encoding, because the layers before a softmax layer carry the order of the tokens.
# Goes on top of config/study/full_content.py, with config/study/depth_1.py as in the study. Six layers
# (config/study/layers_6.py) have the pattern twice.
#   python train.py config/study/dense.py config/study/full_content.py config/study/softmax_third.py \
#     --out_dir=out/softmax_third
attention = "cattn_relative,cattn_relative,softmax"
