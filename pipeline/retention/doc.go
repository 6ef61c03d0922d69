// Package retention removes the oldest files of those who write them without end, recorders above all, when there are more than bounds allow: in age, in
// bytes, and in what they leave free of the disk.
//
// The files of one writer are a Set: what a recordings.Place has that nobody writes, and the Bounds that hold for it; other Bounds hold for all
// sets together. A Keeper has a ledger of each set: how many files and bytes there are, and which are the oldest. Folders are read when it starts, when
// the oldest are used up, and once in a while; between, it is told of the files that are finished.
//
// What it goes by:
//   - Nothing is removed that is not a set's: no file that others have put beside it, no link, and no file that is being written.
//   - A file is as old as the time that has passed since it was written, however the system's clock was set meanwhile. A time of more than a day in which
//     nothing was recorded, and which ended less than a day before the start, may be a wrong clock's: it counts when a day has passed since. A file
//     with a time still to come was written by another clock: its age is not known until the clock is set right, and for the other bounds it is
//     the oldest.
//   - A file that cannot be removed is set aside, so that those behind it go, and tried again.
//   - A folder that cannot be read is not an empty one: what was known of it stays.
//   - A disk that hangs holds up no other one, and nobody who asks how things stand.
package retention
