# What config/cofrgenet*.py have beside their modules: depth 7, an affine linear part, the schedule.
#   python train.py config/study/dense.py config/study/cffn_gated.py config/study/recipe.py
cf_depth = 7
cf_linear_intercept = True
dyadic = True
