# Two heads of keys and values: a standard attention with about as many parameters as CAttnM collapsed.
#   python train.py config/study/dense.py config/study/gqa.py --out_dir=out/arm
n_kv_head = 2
