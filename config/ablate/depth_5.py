# The paper's grid: ladders of depth 5; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/depth_5.py --out_dir=out/f_depth_5
cf_depth = 5
