# Overlay:
# Multi-query attention, with one head of keys and values: about as many parameters as CAttnM with four
# heads.
#   python train.py config/study/dense.py config/study/mqa.py --out_dir=out/arm
n_kv_head = 1
