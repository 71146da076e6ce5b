# Overlay: Softmax attention in every third layer, on top of CAttnM: for the papers' full model.
# Goes on top of config/study/cattn_m.py or cattn_m_collapsed.py, then cffn_gated.py and recipe.py. Six
# layers (config/study/layers_6.py) have the pattern twice.
#   python train.py config/study/dense.py config/study/cattn_m_collapsed.py config/study/cattn_m_third.py \
#     --out_dir=out/cattn_m_third
attention = "cattn_m,cattn_m,softmax"
