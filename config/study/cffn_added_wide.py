# Overlay: cffn_added with 32 ladders of depth 2.
#   python train.py config/study/dense.py config/study/cffn_added_wide.py --out_dir=out/arm
ffn = "cffn_added"
cf_ladders = 32
cf_depth = 2
