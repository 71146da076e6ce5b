# The arXiv paper's CoFrGeNet-A to the letter, as config/paper/cofrgenet_a.py has it.
#   python train.py config/study/base.py config/study/paper_a.py --out_dir=out/arm
attention = "cattn_m"
cf_ladders = 7
cf_depth = 7
cf_pole = "clamp"
cf_eps = 0.01
cf_init = "nanogpt"
cf_eval_clip = True
decay_ladders = True
dyadic = True
