# The paper's grid: 7 ladders in an ensemble; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/ladders_7.py --out_dir=out/f_ladders_7
cf_ladders = 7
