//! Crashes, faults and take-overs between any two calls of the store.

use std::sync::MutexGuard;

use proptest::prelude::*;

use super::*;

/// What happens at one call of the store.
#[derive(Clone, Copy, Debug)]
enum Strike {
    /// The process dies: this call and all after it do nothing.
    Crash,
    /// The call fails, the process lives on.
    Fails(Fault),
    /// Before the call, another process takes over: it starts, writes and collects.
    TakenOver { writes: u8 },
    /// Before the call, a process that was taken over, or is about to be, writes and collects.
    ZombieActs { writes: u8 },
}

#[derive(Clone, Debug)]
enum Step {
    /// The owner writes a checkpoint; bit `s` of `grown` gives shard `s` a new segment, of `merged`
    /// takes its oldest one.
    Write {
        grown: u8,
        merged: u8,
        savepoint: bool,
    },
    Collect,
    /// A new generation starts beside the old one, which becomes a zombie.
    Restart,
    /// A process that was taken over wakes up and writes, or collects.
    ZombieWrites,
    ZombieCollects,
}

#[derive(Debug)]
struct Process {
    writer: Writer,
    generation: u32,
    /// Names of the segments of the running state, by shard.
    live: Vec<Vec<String>>,
    next_sequence: u64,
    /// Strikes at the call when it comes down to 0.
    strike: Arc<Mutex<Option<(usize, Strike)>>>,
    dead: Arc<Mutex<bool>>,
}

#[derive(Debug, Default)]
struct World {
    memory: Arc<MemoryObjects>,
    owner: Option<Process>,
    zombies: Vec<Process>,
    generations: u32,
    epoch: u64,
    /// Segments by shard of every checkpoint that was ever begun.
    begun: std::collections::BTreeMap<CheckpointId, Vec<Vec<String>>>,
    /// The newest checkpoint that an owner was told to be written.
    written: Option<CheckpointId>,
    savepoints: Vec<(SavepointName, CheckpointId)>,
}

type Shared = Arc<Mutex<World>>;

fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap()
}

/// Starts the next generation; `None` if it died on the way. The owner before becomes a zombie.
fn start(world: &Shared, strike: Option<(usize, Strike)>) {
    let (memory, generation) = {
        let mut world = lock(world);
        world.generations += 1;
        let before = world.owner.take();
        world.zombies.extend(before);
        (Arc::clone(&world.memory), world.generations)
    };
    let strike = Arc::new(Mutex::new(strike));
    let dead = Arc::new(Mutex::new(false));
    let plan = {
        let (world, strike, dead) = (Arc::clone(world), Arc::clone(&strike), Arc::clone(&dead));
        move |_, _: &str| struck(&world, &strike, &dead)
    };
    let objects: Arc<dyn ObjectStore> = Arc::new(FaultyObjects::new(memory, plan));
    let Ok((writer, restored)) = open(&objects, generation) else {
        return;
    };
    let mut live = vec![Vec::new(); usize::from(SHARDS)];
    if let Some(restored) = &restored {
        let id = restored.manifest().id();
        let segments = restored.manifest().shards.iter().map(|entry| {
            entry.segments.iter().map(|object| object.segment_name().to_owned()).collect()
        });
        live = segments.collect();
        assert_eq!(live, lock(world).begun[&id], "{id}");
    }
    let process = Process { writer, generation, live, next_sequence: 0, strike, dead };
    let mut world = lock(world);
    if world.generations == generation {
        world.owner = Some(process);
    } else {
        world.zombies.push(process);
    }
}

fn struck(
    world: &Shared,
    strike: &Mutex<Option<(usize, Strike)>>,
    dead: &Mutex<bool>,
) -> Option<Fault> {
    if *dead.lock().unwrap() {
        return Some(Fault::Refused);
    }
    let now = {
        let mut strike = strike.lock().unwrap();
        match &mut *strike {
            Some((0, now)) => {
                let now = *now;
                *strike = None;
                Some(now)
            }
            Some((calls, _)) => {
                *calls -= 1;
                None
            }
            None => None,
        }
    };
    match now? {
        Strike::Crash => {
            *dead.lock().unwrap() = true;
            Some(Fault::Refused)
        }
        Strike::Fails(fault) => Some(fault),
        Strike::TakenOver { writes } => {
            start(world, None);
            for grown in 0..writes {
                act(world, &Step::Write { grown, merged: grown, savepoint: false }, None);
            }
            act(world, &Step::Collect, None);
            None
        }
        Strike::ZombieActs { writes } => {
            let mut zombie = lock(world).zombies.pop()?;
            for grown in 0..writes {
                let step = Step::Write { grown, merged: grown, savepoint: false };
                run(world, &mut zombie, &step, None);
            }
            run(world, &mut zombie, &Step::Collect, None);
            lock(world).zombies.push(zombie);
            None
        }
    }
}

/// Lets the owner act. It is out of the world meanwhile, so that another can take its place.
fn act(world: &Shared, step: &Step, strike: Option<(usize, Strike)>) {
    if lock(world).owner.is_none() {
        start(world, None);
    }
    let Some(mut process) = lock(world).owner.take() else { return };
    run(world, &mut process, step, strike);
    let dead = *process.dead.lock().unwrap();
    let mut world = lock(world);
    if dead {
    } else if world.generations == process.generation {
        world.owner = Some(process);
    } else {
        world.zombies.push(process);
    }
}

fn run(world: &Shared, process: &mut Process, step: &Step, strike: Option<(usize, Strike)>) {
    *process.strike.lock().unwrap() = strike;
    match step {
        Step::Write { grown, merged, savepoint } => {
            let (id, name) = begin(world, process, *grown, *merged);
            let savepoint = savepoint.then_some(&name);
            let result = write(&mut process.writer, id, &process.live.clone(), savepoint);
            let mut world = lock(world);
            match result {
                Ok(_) if world.generations == process.generation => {
                    world.written = Some(id);
                    world.savepoints.extend(savepoint.map(|name| (name.clone(), id)));
                }
                Ok(_) | Err(CheckpointError::Objects(_)) => {}
                Err(CheckpointError::TakenOver { .. }) => {
                    assert!(world.generations > process.generation);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        Step::Collect => match process.writer.collect() {
            Ok(_) | Err(CheckpointError::Objects(_) | CheckpointError::TakenOver { .. }) => {}
            Err(other) => panic!("{other:?}"),
        },
        Step::Restart | Step::ZombieWrites | Step::ZombieCollects => {}
    }
    *process.strike.lock().unwrap() = None;
}

/// Changes the running state and takes an epoch for its checkpoint.
fn begin(
    world: &Shared,
    process: &mut Process,
    grown: u8,
    merged: u8,
) -> (CheckpointId, SavepointName) {
    for (shard, live) in (0..SHARDS).zip(&mut process.live) {
        if merged & (1 << shard) != 0 && !live.is_empty() {
            live.remove(0);
        }
        if grown & (1 << shard) != 0 {
            live.push(segment(process.generation, shard, process.next_sequence));
            process.next_sequence += 1;
        }
    }
    let mut world = lock(world);
    world.epoch += 1;
    let id = id(process.generation, world.epoch);
    world.begun.insert(id, process.live.clone());
    (id, id.to_string().parse().unwrap())
}

/// Every whole checkpoint, found without the code under test where that is possible.
fn whole(memory: &MemoryObjects) -> BTreeSet<CheckpointId> {
    let manifests = memory.list("manifests/").unwrap();
    let read = |name: &ObjectName| memory.read(name).unwrap();
    let manifests = manifests.iter().map(|of| Manifest::decode(&read(&of.name).unwrap()).unwrap());
    let whole = manifests.filter(|manifest| {
        manifest.objects().all(|of| read(&of.name).is_some_and(|content| of.is(&content)))
    });
    whole.map(|manifest| manifest.id()).collect()
}

/// What holds after every step, whatever happened.
fn check_world(world: &World, before: &BTreeSet<CheckpointId>) {
    let objects = world.memory.as_ref();
    let after = whole(objects);
    for id in before.iter().rev().take(2) {
        let newer = after.iter().filter(|other| *other > id).count();
        assert!(after.contains(id) || newer >= 2, "{id} was lost: {after:?}");
    }
    let all_are_damaged = after.is_empty() && !objects.list("manifests/").unwrap().is_empty();
    assert!(!all_are_damaged, "a start would be refused");
    let restored = reader::restore(objects, DEPLOYMENT, &Origin::Newest).unwrap();
    let newest = restored.as_ref().map(|restored| restored.manifest().id());
    assert_eq!(newest, after.last().copied());
    assert!(newest >= world.written, "{newest:?} is older than {:?}", world.written);
    if let Some(restored) = &restored {
        let id = restored.manifest().id();
        assert_eq!(check(objects, restored), world.begun[&id]);
    }
    for (name, id) in &world.savepoints {
        let origin = Origin::Savepoint(name.clone());
        let restored = reader::restore(objects, DEPLOYMENT, &origin).unwrap().unwrap();
        assert_eq!(check(objects, &restored), world.begun[id]);
    }
    if let Some(base) = world.owner.as_ref().and_then(|owner| owner.writer.last()) {
        assert!(after.contains(&base), "{base} is gone under its owner");
    }
}

fn perform(world: &Shared, step: &Step, strike: Option<(usize, Strike)>) {
    let zombie_step = match step {
        Step::Write { .. } | Step::Collect => return act(world, step, strike),
        Step::Restart => return start(world, strike),
        Step::ZombieWrites => Step::Write { grown: 7, merged: 1, savepoint: false },
        Step::ZombieCollects => Step::Collect,
    };
    let Some(mut zombie) = lock(world).zombies.pop() else { return };
    run(world, &mut zombie, &zombie_step, strike);
    lock(world).zombies.insert(0, zombie);
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..8, 0_u8..8, prop::bool::weighted(0.1))
            .prop_map(|(grown, merged, savepoint)| Step::Write { grown, merged, savepoint }),
        4 => Just(Step::Collect),
        2 => Just(Step::Restart),
        1 => Just(Step::ZombieWrites),
        1 => Just(Step::ZombieCollects),
    ]
}

fn strike() -> impl Strategy<Value = Option<(usize, Strike)>> {
    let fault =
        prop_oneof![Just(Fault::Refused), Just(Fault::AppliedThenLost), Just(Fault::TimedOut),];
    let strike = prop_oneof![
        2 => Just(Strike::Crash),
        2 => fault.prop_map(Strike::Fails),
        2 => (0_u8..4).prop_map(|writes| Strike::TakenOver { writes }),
        2 => (0_u8..4).prop_map(|writes| Strike::ZombieActs { writes }),
    ];
    prop::option::weighted(0.6, (0_usize..16, strike))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// CKP-2, CKP-4, CKP-6; B55, B56, B57.
    #[test]
    fn the_newest_whole_checkpoint_is_restored_and_nothing_retained_is_lost(
        steps in prop::collection::vec((step(), strike()), 1..25),
    ) {
        let world = Shared::default();
        for (step, strike) in &steps {
            let before = whole(&lock(&world).memory);
            perform(&world, step, *strike);
            check_world(&lock(&world), &before);
        }
        // Once all is quiet, one collection leaves nothing that is not needed.
        act(&world, &Step::Write { grown: 7, merged: 7, savepoint: false }, None);
        act(&world, &Step::Collect, None);
        let world = lock(&world);
        let objects = world.memory.as_ref();
        let named: BTreeSet<_> = reader::list(objects, DEPLOYMENT).unwrap().into_iter()
            .flat_map(|found| found.manifest.unwrap().objects().map(|of| of.name.clone()).collect::<Vec<_>>())
            .collect();
        let left: Vec<_> = names(objects, "data/").difference(&named).cloned().collect();
        prop_assert_eq!(left, []);
    }
}
