# Overlay: The keys of config/cofrgenet*.py besides their modules: config/study/paper.py without the clamp.
#   python train.py config/study/dense.py config/study/cffn_gated.py config/study/recipe.py \
#     --out_dir=out/recipe
cf_depth = 7
cf_init = "nanogpt"
cf_linear_intercept = True
cf_eval_clip = True
decay_ladders = True
dyadic = True
