# The papers' recipe to the letter, on top of a module of theirs: cffn_gated (arXiv), cffn_product (ICLR),
# cattn_m, or cattn_m and cffn_gated; config/paper/ has the same at their size.
#   python train.py config/study/dense.py config/study/cffn_gated.py config/study/paper.py --out_dir=out/arm
cf_depth = 7
cf_pole = "clamp"
cf_init = "nanogpt"
cf_eval_clip = True
decay_ladders = True
dyadic = True
