# cffn_added with as many ladders of depth 2 as make two thirds of the dense model's parameters.
#   python train.py config/study/dense.py config/study/cffn_added_many.py --out_dir=out/arm
ffn = "cffn_added"
cf_ladders = 84
cf_depth = 2
