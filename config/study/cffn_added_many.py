# Overlay: cffn_added with so many ladders of depth 2 that the model has two thirds of the dense parameters.
#   python train.py config/study/dense.py config/study/cffn_added_many.py --out_dir=out/arm
ffn = "cffn_added"
cf_ladders = 84
cf_depth = 2
