# Multi-query attention: one head of keys and values. A standard attention with about as many parameters as
# CAttnM with four heads.
#   python train.py config/study/dense.py config/study/mqa.py --out_dir=out/arm
n_kv_head = 1
