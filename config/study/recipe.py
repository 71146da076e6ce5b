# What config/cofrgenet*.py have beside their modules: all of paper.py but the clamp.
#   python train.py config/study/dense.py config/study/cffn_gated.py config/study/recipe.py
cf_depth = 7
cf_init = "nanogpt"
cf_linear_intercept = True
cf_eval_clip = True
decay_ladders = True
dyadic = True
